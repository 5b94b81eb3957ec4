"""Plausible wrong solutions of each exercise: what is changed in the right one, the rung that must fail, and what the message must say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in the exercise's lines; the ladder fails at `rung`, and says `says`."""

    exercise: str
    old: str
    new: str
    rung: str
    says: str = ""

    def __str__(self):
        return f"{self.exercise}: {self.old.strip()} -> {self.new.strip()}"


def of(exercise, *changes):
    """(old, new, rung, says) for one exercise."""
    return [Mutation(exercise, *change) for change in changes]


MUTATIONS = [
    *of(
        "matmul.naive",
        ("weight[column, k]", "weight[k, column]", "the weight's layout", "out_features, in_features"),
        ("if row < out.shape[0] and column < out.shape[1]:", "if True:", "one element by hand", "compare the index"),
        ("if row < out.shape[0] and", "if row <= out.shape[0] and", "one element by hand", "out of bounds"),
        ("range(x.shape[1])", "range(x.shape[1] - 1)", "one element by hand", "the last element of each row"),
        ("total += float32(bias[column])", "total += float32(bias[row])", "bias", "out[token 0, feature 1]"),
        ("if bias is not None:", "if False:", "bias", "the bias was not added"),
        ("total += float32(x", "out[row, column] = total; total = out[row, column] + float32(x", "byte budget", "running sum"),
    ),
    *of(
        "normalization.rms_norm",
        ("if i < hidden:\n                load(x", "if True:\n                load(x", "one row by hand", "out of bounds"),
        ("float32(hidden) + epsilon", "float32(hidden)", "epsilon", "epsilon was left out"),
        ("libdevice.rsqrtf(", "float32(1) / (", "one row by hand", "1 / its root"),
        ("block_sum(sum_of_squares, partials) / float32(hidden)", "sum_of_squares / float32(hidden)", "epsilon", ""),
        ("store(residual, row + i, values, at)", "pass", "residual", "not written back"),
        ("inverse_rms * weights[at + k]", "inverse_rms", "epsilon", "weight was not multiplied"),
        ("values[at + k] += addend[k]", "pass", "residual", ""),
    ),
    *of(
        "attention.split_merge",
        ("weight = ex2(split_max[sequence, head, split] - shift)", "weight = float32(1)", "other maxima", "without their weights"),
        ("total += weight * split_sum", "total += split_sum", "other maxima", "the sums were not"),
        ("split_max[sequence, head, split] - shift", "split_max[sequence, head, split]", "huge scores", ""),
        ("while split < used", "while split < splits", "empty splits", "nobody wrote"),
        ("                if dim < head_dim:", "                if True:", "one split by hand", "out of bounds"),
        ("split = warp", "split = 0", "two splits, one maximum", ""),
    ),
]
