"""Operations on each element by itself that Gemma needs: GELU and multiply, the embedding's factor, and soft caps."""
