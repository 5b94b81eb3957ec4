/* The formulas of minllm/costs and minllm/planning/plan.py, for the pages that compute in the browser. No document is touched here.
 *
 * Names follow the Python ones in camelCase; the docstrings there say what each counts and where it comes from. tests/plan holds both
 * against each other on random models, GPUs and wishes. */

const LOGIT_BYTES = 4;
const ANGLE_BYTES = 4;
const ID_AND_WEIGHT_BYTES = 8;
const BLOCK_SIZE = 16;
// minllm/costs/step_limits.py: tokens of a step, and what fewer are a multiple of.
const STEP_TOKENS = 2048, TOKEN_STEP = 512, TOKENS_PER_ROW = 8, ACTIVATION_SHARE = 4;

const GEMMA = {
  hidden_size: 2304, intermediate_size: 9216, num_hidden_layers: 26, num_attention_heads: 8, num_key_value_heads: 4, head_dim: 256,
  tie_word_embeddings: true,
};

const FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gemma3_text"];
const MOE_DEFAULTS = {
  qwen2_moe: { num_experts: 60, num_experts_per_tok: 4, moe_intermediate_size: 1408, shared_expert_intermediate_size: 5632 },
  qwen3_moe: { num_experts: 128, num_experts_per_tok: 8, moe_intermediate_size: 768 },
};
const NO_EXPERTS = { experts: 0, perToken: 0, sharedInner: 0 };

// config.json -> what the counts need, family by family, with each family's own defaults.
export function readConfig(values) {
  const type = values.model_type ?? { LlamaForCausalLM: "llama", MistralForCausalLM: "mistral", Qwen2ForCausalLM: "qwen2",
    Qwen3ForCausalLM: "qwen3", Qwen2MoeForCausalLM: "qwen2_moe", Qwen3MoeForCausalLM: "qwen3_moe", Gemma2ForCausalLM: "gemma2", Gemma3ForCausalLM: "gemma3_text", GPT2LMHeadModel: "gpt2" }[values.architectures?.[0]];
  if (type === "gpt2") return readGpt2(values);
  if (!FAMILIES.includes(type)) {
    throw new Error(`model_type ${JSON.stringify(type)} is not counted here: ${FAMILIES.join(", ")} and gpt2 are.`);
  }
  const isGemma = type.startsWith("gemma"), ofExperts = readExperts(type, values);
  if (isGemma) values = { ...GEMMA, ...values };
  const heads = whole(values, "num_attention_heads"), hidden = whole(values, "hidden_size"), layers = whole(values, "num_hidden_layers");
  const bias = type === "qwen2" || (type !== "mistral" && (values.attention_bias ?? false));
  const qkvBias = type === "qwen2_moe" ? values.qkv_bias ?? true : bias;
  const config = {
    vocab: whole(values, "vocab_size"), hidden, layers, heads,
    inner: ofExperts.inner ?? whole(values, "intermediate_size"),
    kvHeads: whole(values, "num_key_value_heads", heads),
    headDim: whole(values, "head_dim", type === "qwen3" ? 128 : hidden / heads),
    maxPositions: whole(values, "max_position_embeddings", { llama: 2048, mistral: 131072, gemma2: 8192, gemma3_text: 131072 }[type] ?? 32768),
    layerNorm: false, gated: true, rope: true, mlpBias: false, qkvBias,
    outputBias: type.startsWith("qwen2") ? false : bias, qkNorm: ["qwen3", "qwen3_moe", "gemma3_text"].includes(type), postNorms: isGemma,
    tied: values.tie_word_embeddings ?? false, windows: windows(type, values, layers), ...ofExperts,
  };
  if (config.heads % config.kvHeads) throw new Error(`${config.heads} query heads are not a multiple of ${config.kvHeads} KV heads.`);
  return config;
}

// The experts of each layer: how many, of which a token takes `perToken`, the inner width of each and of the shared one (0: there is none).
function readExperts(type, values) {
  if (!(type in MOE_DEFAULTS)) return NO_EXPERTS;
  const given = { ...MOE_DEFAULTS[type], ...values, num_experts: values.num_experts ?? values.num_local_experts ?? MOE_DEFAULTS[type].num_experts };
  if ((given.decoder_sparse_step ?? 1) !== 1 || given.mlp_only_layers?.length) throw new Error("Some layers have no experts, which is not counted here.");
  const experts = whole(given, "num_experts"), perToken = whole(given, "num_experts_per_tok");
  if (perToken > experts) throw new Error(`num_experts_per_tok is ${perToken}, and there are only ${experts} experts to choose from.`);
  const sharedInner = type === "qwen2_moe" ? whole(given, "shared_expert_intermediate_size") : 0;
  return { experts, perToken, inner: whole(given, "moe_intermediate_size"), sharedInner };
}

function readGpt2(values) {
  const hidden = whole(values, "n_embd", 768), heads = whole(values, "n_head", 12), layers = whole(values, "n_layer", 12);
  return {
    vocab: whole(values, "vocab_size"), hidden, layers, heads, inner: whole(values, "n_inner", 4 * hidden), kvHeads: heads,
    headDim: whole({ d: hidden / heads }, "d"), maxPositions: whole(values, "n_positions", 1024), layerNorm: true, gated: false, rope: false,
    mlpBias: true, qkvBias: true, outputBias: true, qkNorm: false, tied: values.tie_word_embeddings ?? true, windows: Array(layers).fill(0),
    ...NO_EXPERTS,
  };
}

function whole(values, key, fallback) {
  const value = values[key] ?? fallback;
  if (!Number.isInteger(value) || value < 1) throw new Error(`${key} must be a whole number of at least 1, and is ${JSON.stringify(value)}.`);
  return value;
}

function windows(type, values, layers) {
  if (type === "llama") return Array(layers).fill(0);
  const off = values.sliding_window === null || (type.startsWith("qwen") && !values.use_sliding_window);
  const window = off ? 0 : values.sliding_window ?? 4096;
  const first = values.max_window_layers ?? 28, pattern = values.sliding_window_pattern ?? 6;
  const hasWindow = {
    mistral: () => true, qwen3_moe: () => true, qwen2_moe: (layer) => layer % 2 === 0 && layer < first, gemma2: (layer) => layer % 2 === 0, gemma3_text: (layer) => (layer + 1) % pattern !== 0,
  }[type] ?? ((layer) => layer >= first);
  return Array.from({ length: layers }, (_, layer) =>
    (values.layer_types && type !== "qwen3_moe" ? values.layer_types[layer] === "sliding_attention" : hasWindow(layer)) ? window : 0);
}

const queryWidth = (c) => c.heads * c.headDim;
const keyValueWidth = (c) => 2 * c.kvHeads * c.headDim;
const upWidth = (c) => c.inner * (c.gated ? 2 : 1);
const normParameters = (c) => c.hidden * (c.layerNorm ? 2 : 1);
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

export const layerMatrixParameters = (c) => sum(layerMatrices(c).map(([outputs, inputs]) => outputs * inputs));

// Parameters of one expert in one layer.
const expertParameters = (c) => c.hidden * (upWidth(c) + c.inner);

// Router and gate of the shared expert, which stay in 16 bits in every format.
const routerParameters = (c) => (c.experts + (c.sharedInner > 0)) * c.hidden;

// The expected number of experts per layer that at least one of `tokens` tokens chooses, uniformly and independently.
export const touchedExperts = (c, tokens) => c.experts * (1 - (1 - c.perToken / c.experts) ** tokens);

// Parameters that one token multiplies by or adds.
export const activeParameters = (c) => parameterCount(c) - c.layers * (c.experts - c.perToken) * expertParameters(c);

function layerVectorParameters(c) {
  return routerParameters(c) + (c.postNorms ? 4 : 2) * normParameters(c) + (queryWidth(c) + keyValueWidth(c)) * c.qkvBias + c.hidden * c.outputBias
    + (upWidth(c) + c.hidden) * c.mlpBias + 2 * c.headDim * c.qkNorm;
}

export function parameterCount(c) {
  const embeddings = c.vocab * c.hidden + (c.rope ? 0 : c.maxPositions * c.hidden);
  const head = c.tied ? 0 : c.vocab * c.hidden;
  return c.layers * (layerMatrixParameters(c) + layerVectorParameters(c)) + embeddings + head + normParameters(c);
}

// [outputs, inputs] of the linear layers of one layer; the matrices of all experts are stacked.
const layerMatrices = (c) => [
  [queryWidth(c) + keyValueWidth(c), c.hidden], [c.hidden, queryWidth(c)], ...feedForwards(c, c.inner, c.experts || 1),
  ...(c.sharedInner ? feedForwards(c, c.sharedInner) : []),
];
const feedForwards = (c, inner, count = 1) => [[count * inner * (c.gated ? 2 : 1), c.hidden], [count * c.hidden, inner]];

// Bytes of a matrix in a format of tables.weight_formats, as a function of its outputs and inputs: codes, scales, and scales of scales.
export const matrixBytesIn = (format) => (outputs, inputs) => {
  const groups = format.group_size ? Math.floor((outputs * inputs) / format.group_size) : 0;
  const nested = format.nested_size ? 4 * Math.ceil(groups / format.nested_size) + format.table_bytes : 0;
  const blocks = format.block_size ? 4 * Math.ceil(outputs / format.block_size) * Math.ceil(inputs / format.block_size) : 0;
  return outputs * inputs * format.matrix_itemsize + outputs * format.row_bytes + groups * format.group_bytes + nested + blocks;
};

export function weightBytes(c, item, matrixBytes) {
  const rest = parameterCount(c) - c.layers * layerMatrixParameters(c);
  return rest * item + c.layers * sum(layerMatrices(c).map(([outputs, inputs]) => matrixBytes(outputs, inputs)));
}

// Bytes that a cached number takes, its part of the scales included. format: of tables.kv_formats.
export function kvItemsize(format, headDim) {
  if (headDim % format.multiple) {
    throw new Error(`Heads of ${headDim} cannot be cached in this format: they must be a multiple of ${format.multiple}.`);
  }
  const group = format.groups.find((size) => headDim % size === 0) ?? headDim;
  return format.bits / 8 + format.scale_bytes / group;
}

export const kvBytesPerToken = (c, item) => Math.round(c.layers * keyValueWidth(c) * item);
export const ungroupedKvBytesPerToken = (c, item) => Math.round(2 * c.layers * queryWidth(c) * item);

// The one sliding window of some layers if the others see the whole context; else 0.
function mixedWindow(c) {
  const found = new Set(c.windows);
  return found.size === 2 && found.has(0) ? Math.max(...found) : 0;
}

// Tokens of whole blocks that a layer keeps of a context.
function cachedTokens(context, window) {
  const blocks = Math.ceil(context / BLOCK_SIZE);
  return (window ? Math.min(blocks, Math.ceil(window / BLOCK_SIZE) + 2) : blocks) * BLOCK_SIZE;
}

function visiblePairs(tokens, window) {
  if (!window || tokens <= window) return (tokens * (tokens + 1)) / 2;
  return (window * (window + 1)) / 2 + (tokens - window) * window;
}

// items: { item, matrixBytes, kvItem }: bytes per number, of a matrix by its outputs and inputs, and per cached number.
export const SIXTEEN_BITS = { item: 2, matrixBytes: (outputs, inputs) => 2 * outputs * inputs, kvItem: 2 };

export function decodeStages(c, batch, context, items) {
  const visible = batch * sum(c.windows.map((window) => (window ? Math.min(context, window) : context)));
  return forwardStages(c, { tokens: batch, rows: batch, visible, read: visible, ...items });
}

export function prefillStages(c, tokens, items, sequences = 1) {
  const visible = sequences * sum(c.windows.map((window) => visiblePairs(tokens, window)));
  const total = sequences * tokens;
  return forwardStages(c, { tokens: total, rows: sequences, visible, read: c.layers * total, ...items });
}

// The smallest counts of a step: { bytes, flops } of sizes { tokens, rows, visible, read }, each 0 if left out.
const countsOf = (c, items) => (sizes) => {
  const stages = forwardStages(c, { tokens: 0, rows: 0, visible: 0, read: 0, ...items, ...sizes });
  return { bytes: sum(stages.map((one) => one.weights + one.kv)), flops: sum(stages.map((one) => one.flops)) };
};

/* Everything of a step but attention, as StepCosts.linear_seconds and StepCosts.ridge of minllm/costs/serving.py: seconds(tokens, rows) of which `rows` are
 * sampled from, and the rows from which on arithmetic bounds them. rates: { bandwidth, flops } per second. */
export function linearCosts(c, rates, items = SIXTEEN_BITS) {
  const counts = countsOf(c, items), fixed = counts({}).bytes, token = counts({ tokens: 1 }), row = counts({ rows: 1 }).flops;
  const ofExpert = c.experts ? c.layers * expertParameters(c) * items.item : 0, expertBytes = (tokens) => (ofExpert ? ofExpert * touchedExperts(c, tokens) : 0);
  const each = token.bytes - fixed - ofExpert * c.perToken, everything = fixed + ofExpert * c.experts;
  const seconds = (tokens, rows) =>
    Math.max((fixed + tokens * each + expertBytes(tokens)) / rates.bandwidth, (tokens * token.flops + rows * row) / rates.flops);
  return { seconds, ridge: everything / rates.bandwidth / ((token.flops + row) / rates.flops - each / rates.bandwidth) };
}

/* What a step takes at least, as minllm/costs/serving.py counts it: a function of contexts, the keys that each decode sees; chunks, [start, length] of
 * parts of prompts; and rows, the tokens that are sampled from; in seconds. rates: { bandwidth, flops } per second. Linear layers take all tokens
 * together, attention takes decodes and prompts apart. */
export function stepSeconds(c, rates, items = SIXTEEN_BITS) {
  const counts = countsOf(c, items), fixed = counts({}).bytes, linear = linearCosts(c, rates, items);
  const key = counts({ read: 1 }).bytes - fixed, pair = counts({ visible: 1 }).flops, hasWindows = c.windows.some(Boolean);
  const floor = (bytes, flops) => Math.max(bytes / rates.bandwidth, flops / rates.flops);
  const overLayers = (count) => (hasWindows ? sum(c.windows.map(count)) : c.layers * count(0));
  return (contexts, chunks, rows) => {
    const tokens = contexts.length + sum(chunks.map(([, length]) => length));
    const keys = sum(contexts.map((context) => overLayers((window) => (window ? Math.min(context, window) : context))));
    const read = c.layers * sum(chunks.map(([start, length]) => start + length));
    const pairs = sum(chunks.map(([start, length]) => overLayers((window) => visiblePairs(start + length, window) - visiblePairs(start, window))));
    return linear.seconds(tokens, rows) + floor(keys * key, keys * pair) + floor(read * key, pairs * pair);
  };
}

function stage(name, { weights = 0, kv = 0, activations = 0, flops = 0, other = 0 }) {
  return { name, weights, kv, activations, flops, other, bytes: weights + kv + activations, intensity: (flops + other) / (weights + kv + activations) };
}

function forwardStages(c, s) {
  const { hidden, layers, inner } = c, query = queryWidth(c), keyValue = keyValueWidth(c), up = upWidth(c);
  const rows = s.tokens * hidden * s.item, logits = s.rows * c.vocab * LOGIT_BYTES;
  const norm = (name, times, tokens, withoutResidual = 0) => stage(name, {
    weights: times * normParameters(c) * s.item,
    activations: (4 * times - 2 * withoutResidual) * tokens * hidden * s.item,
    other: (c.layerNorm ? 8 : 5) * times * tokens * hidden,
  });
  const projection = (name, inputs, outputs, bias) => stage(name, {
    weights: layers * (s.matrixBytes(outputs, inputs) + outputs * bias * s.item),
    activations: layers * s.tokens * (inputs + outputs) * s.item,
    flops: 2 * layers * s.tokens * inputs * outputs,
  });
  return [
    stage("embedding", { weights: (c.rope ? 1 : 2) * rows, activations: rows }),
    norm("attention norm", layers, s.tokens, 1),
    projection("qkv projection", hidden, query + keyValue, c.qkvBias),
    stage("rope and append", {
      weights: layers * 2 * c.headDim * c.qkNorm * s.item,
      kv: layers * s.tokens * keyValue * s.kvItem,
      activations: layers * s.tokens * ((2 * query + keyValue) * s.item + (c.rope ? c.headDim * ANGLE_BYTES : 0)),
      other: c.rope ? (c.qkNorm ? 7 : 3) * layers * s.tokens * (query + keyValue / 2) : 0,
    }),
    stage("attention", {
      kv: s.read * keyValue * s.kvItem,
      activations: layers * 2 * s.tokens * query * s.item,
      flops: 4 * query * s.visible,
      other: 5 * c.heads * s.visible,
    }),
    projection("output projection", query, hidden, c.outputBias),
    ...(c.postNorms ? [norm("attention post-norm", layers, s.tokens, layers)] : []),
    norm("MLP norm", layers, s.tokens),
    ...(c.experts ? expertStages(c, s, projection) : [
      projection("MLP up projection", hidden, up, c.mlpBias),
      stage("MLP activation", { activations: layers * s.tokens * (up + inner) * s.item, other: (c.gated ? 6 : 10) * layers * s.tokens * inner }),
      projection("MLP down projection", inner, hidden, c.mlpBias),
    ]),
    ...(c.postNorms ? [norm("MLP post-norm", layers, s.tokens, layers)] : []),
    norm("final norm", 1, s.rows),
    stage("lm_head", { weights: c.vocab * hidden * s.item, activations: s.rows * hidden * s.item + logits, flops: 2 * s.rows * c.vocab * hidden }),
    stage("sampling", { activations: logits, other: s.rows * c.vocab }),
  ];
}

// minllm/models/parts/experts.py: the stages of a mixture of experts after the norm. pairs: of a token and an expert that it chose.
function expertStages(c, s, projection) {
  const { hidden, layers, inner, sharedInner: shared } = c, pairs = layers * s.tokens * c.perToken, logits = layers * s.tokens * c.experts;
  const share = touchedExperts(c, s.tokens) / c.experts;
  const [ofUp, ofDown] = feedForwards(c, inner, c.experts).map(([outputs, inputs]) => s.matrixBytes(outputs, inputs));
  const stacked = (name, bytes, outputs, inputs) => stage(name, {
    weights: Math.round(layers * bytes * share), activations: pairs * (inputs + outputs) * s.item, flops: 2 * pairs * outputs * inputs,
  });
  const activation = (name, numbers) => stage(name, { activations: 3 * numbers * s.item, other: 6 * numbers });
  return [
    stage("router", {
      weights: layers * routerParameters(c) * s.item,
      activations: layers * s.tokens * hidden * s.item + 2 * LOGIT_BYTES * logits + pairs * ID_AND_WEIGHT_BYTES,
      flops: 2 * layers * s.tokens * routerParameters(c),
      other: 5 * logits,
    }),
    stacked("expert up projections", ofUp, 2 * inner, hidden),
    activation("expert activation", pairs * inner),
    stacked("expert down projections", ofDown, hidden, inner),
    stage("expert sum", { activations: hidden * (pairs + layers * s.tokens) * s.item, other: 2 * hidden * pairs }),
    ...(shared ? [
      projection("shared expert up projection", hidden, 2 * shared, false),
      activation("shared expert activation", layers * s.tokens * shared),
      projection("shared expert down projection", shared, hidden, false),
      stage("shared expert sum", { activations: 3 * layers * s.tokens * hidden * s.item, other: 2 * layers * s.tokens * hidden }),
    ] : []),
  ];
}

export function shard(c, degree) {
  if (degree === 1) return c;
  if (c.heads % degree || c.inner % degree || c.sharedInner % degree || (c.kvHeads % degree && degree % c.kvHeads)) {
    throw new Error(`${degree} GPUs do not divide ${c.heads} query heads, ${c.kvHeads} KV heads and an inner width of ${c.inner}.`);
  }
  return { ...c, heads: c.heads / degree, kvHeads: Math.max(1, Math.floor(c.kvHeads / degree)), inner: c.inner / degree, sharedInner: c.sharedInner / degree,
    vocab: Math.ceil(c.vocab / degree) };
}

const allReduces = (c, embeds = true) => (c.sharedInner ? 3 : 2) * c.layers + (embeds ? 1 : 0);

function allReduceBytes(c, tokens, rows, degree, item, embeds = true) {
  const reduced = 2 * allReduces(c, embeds) * tokens * c.hidden * item;
  return Math.floor(((reduced + rows * c.vocab * LOGIT_BYTES) * (degree - 1)) / degree);
}

// minllm/costs/pipeline.py: the last of `stages` stages as a model of its own, and how a step is cut for them.
export function lastStage(c, stages) {
  if (c.layers % stages) throw new Error(`${stages} pipeline stages do not divide ${c.layers} layers.`);
  const layers = c.layers / stages;
  return { ...c, layers, windows: c.windows.slice(-layers) };
}

const FEWEST_TOKENS = 128; // per micro-batch, if there are several

const dividedInto = (count, tokens, stages) => ({ count, tokens: Math.ceil(tokens / count), stages, bubble: (stages - 1) / (stages - 1 + count) });

export function microBatches(tokens, stages) {
  return dividedInto(Math.max(1, Math.min(stages, Math.floor(tokens / FEWEST_TOKENS))), tokens, stages);
}

function promptParts(tokens, stages, stepTokens) {
  const steps = stages > 1 ? Math.ceil(tokens / stepTokens) : 1;
  return dividedInto(steps * microBatches(Math.ceil(tokens / steps), stages).count, tokens, stages);
}

// minllm/costs/measured_all_reduces.py: microseconds of one all-reduce, null if it was not measured between so many of these GPUs.
function ncclMicroseconds(gpu, ranks, messageBytes) {
  const times = gpu.nccl?.microseconds[ranks], sizes = gpu.nccl?.sizes;
  if (!times) return null;
  if (messageBytes <= sizes[0]) return times[0];
  if (messageBytes >= sizes.at(-1)) return (times.at(-1) * messageBytes) / sizes.at(-1);
  const above = sizes.findIndex((size) => size >= messageBytes);
  const share = (messageBytes - sizes[above - 1]) / (sizes[above] - sizes[above - 1]);
  return times[above - 1] + share * (times[above] - times[above - 1]);
}

// minllm/costs/step_limits.py: the most tokens of a step with `room` bytes beside the weights.
export function stepTokens(c, item, room) {
  if (room <= 0) return STEP_TOKENS;
  const fitting = Math.floor((room * TOKENS_PER_ROW) / (ACTIVATION_SHARE * forwardBytes(c, 1, item, TOKENS_PER_ROW)));
  return Math.max(TOKEN_STEP, Math.min(STEP_TOKENS, Math.floor(fitting / TOKEN_STEP) * TOKEN_STEP));
}

function forwardBytes(c, batch, item, tokens) {
  const ofMlp = c.experts ? Math.max(c.perToken * Math.max(2 * c.inner, c.hidden), 2 * c.sharedInner) : 2 * c.inner;
  const widest = Math.max(queryWidth(c) + keyValueWidth(c), ofMlp);
  return Math.max(tokens, batch) * item * (5 * widest + 4 * c.hidden) + 2 * LOGIT_BYTES * batch * c.vocab;
}

function largestBatch(c, room, sequenceBytes, item, tokens) {
  const fixed = forwardBytes(c, 0, item, tokens), logits = forwardBytes(c, 1, item, tokens) - fixed;
  let batch = Math.floor((room - fixed) / (sequenceBytes + logits));
  if (batch > tokens) batch = Math.max(tokens, Math.floor(room / (sequenceBytes + logits + fixed / tokens)));
  return Math.max(0, batch);
}

// The rate that a GPU multiplies a weight format at: [TFLOP/s, where from].
export function bestRate(gpu, format) {
  const rate = format.rates.find((name) => gpu[name] !== null) ?? format.rates.at(-1);
  const measured = ["bf16_tflops", "fp16_tflops"].includes(rate) ? gpu.measured_bf16_tflops : null;
  const name = rate.split("_")[0];
  return measured ? [measured, `${name}, measured cuBLAS`] : [gpu[rate], `${name}, data sheet`];
}

export const bandwidth = (gpu) => gpu.measured_copy_tb_s ?? gpu.bandwidth_tb_s;

/* minllm/planning/floor.py: cost(model) counts one micro-batch of `tokens` tokens and `rows` sampled rows; `counted` tokens are the step's. */
function stepFloor(cost, parts, tokens, rows, counted, { config, allStages, part, gpu, tflops, degree, item, pricePerHour }) {
  const whole = cost(allStages), last = cost(part), more = parts.count - 1, embeds = parts.stages === 1;
  const memory = (one) => (1e3 * one.bytes) / (bandwidth(gpu) * 1e12), compute = (one) => (1e3 * one.flops) / (tflops * 1e12);
  const memoryMs = memory(whole) + more * memory(last), computeMs = compute(whole) + more * compute(last);
  const stage = lastStage(config, parts.stages), hidden = tokens * config.hidden * item;
  const ofLast = allReduceBytes(stage, tokens, rows, degree, item, embeds);
  const sent = allReduceBytes(config, tokens, rows, degree, item) + more * ofLast + (parts.stages - 1) * hidden;
  const linkMs = (1e3 * sent) / ((gpu.link_gb_s / 2) * 1e9), floorMs = Math.max(memoryMs, computeMs) + linkMs, tokensPerS = (1e3 * counted) / floorMs;
  const each = ncclMicroseconds(gpu, degree, hidden), reductions = allReduces(config) + more * allReduces(stage, embeds);
  return {
    bytes: parts.count * last.bytes, flops: parts.count * last.flops, memoryMs, computeMs, linkMs, floorMs, tokensPerS,
    sentBytes: parts.count * (ofLast + (embeds ? 0 : hidden)), bubble: parts.bubble, ncclMs: each === null ? null : 1e-3 * each * reductions,
    cost: pricePerHour === null ? null : (1e6 * pricePerHour * degree * parts.stages) / (3600 * tokensPerS),
    bound: linkMs > Math.max(memoryMs, computeMs) ? "link" : memoryMs >= computeMs ? "memory" : "arithmetic",
  };
}

/* wishes: { context, batch, tensorParallel, pipelineParallel, memoryShare, pricePerHour or null }; format: of tables.weight_formats; kvItem: bytes. */
export function makePlan(config, gpu, format, kvItem, wishes) {
  const { context, batch, tensorParallel: degree, pipelineParallel: stages = 1, pricePerHour } = wishes;
  for (const [name, value] of [["context", context], ["batch", batch], ["GPUs", degree], ["stages", stages]]) {
    if (!Number.isInteger(value) || value < 1) throw new Error(`${name} must be a whole number of at least 1.`);
  }
  if (!config.rope && context > config.maxPositions) throw new Error(`This model has learned positions for ${config.maxPositions} tokens.`);
  const allStages = shard(config, degree), part = lastStage(allStages, stages), item = format.itemsize, matrixBytes = matrixBytesIn(format);
  for (const [, inputs] of layerMatrices(part)) {
    if (format.group_size && inputs % format.group_size) throw new Error(`Groups of ${format.group_size} do not divide ${inputs} inputs of a matrix.`);
  }
  const items = { item, matrixBytes, kvItem };
  const [tflops, tflopsSource] = bestRate(gpu, format);
  const kvToken = kvBytesPerToken(part, kvItem), isPlain = kvItem >= 2 && degree * stages === 1;
  const sequence = sum(part.windows.map((window) => cachedTokens(context, isPlain ? mixedWindow(part) && window : 0))) * (kvToken / part.layers);
  const weights = weightBytes(part, item, matrixBytes), budget = Math.floor(gpu.memory_gb * 1e9 * wishes.memoryShare);
  const sumOf = (stages) => ({ bytes: sum(stages.map((one) => one.weights + one.kv)), flops: sum(stages.map((one) => one.flops)) });
  const machine = { config, allStages, part, gpu, tflops, degree, item, pricePerHour }, together = microBatches(batch, stages);
  const decode = (model) => sumOf(decodeStages(model, together.tokens, context, items));
  const prefill = (model, all = sumOf(prefillStages(model, context, items))) => ({ ...all, flops: Math.floor(all.flops / chunks.count) });
  const maxTokens = stepTokens(part, item, budget - weights), chunks = promptParts(context, stages, maxTokens);
  const kv = batch * sequence, activations = forwardBytes(part, batch, item, maxTokens);
  return {
    parameters: parameterCount(config), weights, allWeights: weightBytes(config, item, matrixBytes), kv, kvToken,
    allKvToken: kvBytesPerToken(config, kvItem), ungroupedKvToken: ungroupedKvBytesPerToken(config, kvItem), activations,
    memory: Math.floor(gpu.memory_gb * 1e9), budget, fits: weights + kv + activations <= budget,
    largestBatch: largestBatch(part, budget - weights, sequence, item, maxTokens),
    bandwidth: bandwidth(gpu), bandwidthSource: gpu.measured_copy_tb_s ? "measured copy" : "data sheet", tflops, tflopsSource,
    maxTokens, activeParameters: activeParameters(config), touchedExperts: config.experts ? touchedExperts(config, together.tokens) : null,
    ridgeBatch: ((format.matrix_itemsize * tflops) / (2 * bandwidth(gpu))) * (layerMatrixParameters(config)
      / (layerMatrixParameters(config) - (config.experts - config.perToken) * expertParameters(config))),
    decode: stepFloor(decode, together, together.tokens, together.tokens, batch, machine),
    prefill: stepFloor(prefill, chunks, chunks.tokens, 1, context, machine),
  };
}
