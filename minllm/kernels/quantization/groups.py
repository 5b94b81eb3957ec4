"""How many cached numbers share a scale and a zero."""

INT4_GROUP = 32  # components of a head
TOKEN_GROUP = 32  # tokens quantised together if keys are by channel; residual windows are multiples of it
