"""The course's machinery: exercises and their checks, detective cases, and what lessons are made of."""
