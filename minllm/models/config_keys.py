"""Keys of config.json that change a model's results, and the values of them that change nothing.

Each family lists the keys that its reader understands (families/). Any other key is refused unless it is harmless: known not to affect the
logits, or set to a value that switches its feature off. An unknown key may describe a different model, so it is never ignored.
"""

from typing import Any

from minllm.errors import UnsupportedModelError
from minllm.models.json_files import Fields

# Options that change the result, each with its neutral values; null is always neutral.
NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "quantization_config": (),
    "mlp_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1, 1.0),
    "residual_multiplier": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "logit_scale": (1, 1.0),
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "use_qk_norm": (False,),
    "alibi": (False,),
    "attention_sink": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "is_causal": (True,),
    "use_rope": (True,),
    "activation": ("silu", "swiglu"),  # Falcon 3 has this key beside hidden_act
}

# Keys of real checkpoints that do not affect the logits in transformers.
HARMLESS_KEYS = frozenset(
    key
    for keys in (
        # what the file is, and who wrote it
        "architectures model_type transformers_version _name_or_path name_or_path _commit_hash auto_map tokenizer_class processor_class "
        "transformers.js_config unsloth_version unsloth_fixed is_llama_config model_max_length max_sequence_length",
        # training
        "initializer_range attention_dropout attn_pdrop embd_pdrop resid_pdrop hidden_dropout hidden_dropout_prob dropout "
        "attention_probs_dropout_prob classifier_dropout gradient_checkpointing finetuning_task problem_type num_labels id2label label2id "
        "task_specific_params output_router_logits router_aux_loss_coef",
        # heads for other tasks: GPT-2's summary
        "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout summary_last_dropout",
        # how other programs compute the same results
        "use_cache output_attentions output_hidden_states return_dict use_return_dict attn_implementation _attn_implementation "
        "_attn_implementation_autoset _attn_implementation_internal experts_implementation _experts_implementation "
        "_experts_implementation_internal chunk_size_feed_forward pretraining_tp torchscript tf_legacy_loss use_bfloat16 is_decoder "
        "reorder_and_upcast_attn n_ctx cache_implementation",
        # tokens that the tokenizer and its user deal with
        "pad_token_id sep_token_id unk_token_id decoder_start_token_id prefix",
        # suggestions for sampling, which old files keep here instead of in generation_config.json
        "max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p "
        "min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty encoder_repetition_penalty length_penalty no_repeat_ngram_size "
        "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
        "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens "
        "num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold assistant_lookbehind target_lookbehind",
    )
    for key in keys.split()
)


def refuse_unknown_options(fields: Fields, known: frozenset[str]) -> None:
    """Raises UnsupportedModelError if a key that may change the result is set and is not in `known`.

    known: the keys that the family's reader reads.
    """
    for key, value in fields.values.items():
        if key in known or key in HARMLESS_KEYS or value is None:
            continue
        if key in NEUTRAL_OPTIONS:
            if value not in NEUTRAL_OPTIONS[key]:
                shown = value.get("quant_method", "set") if isinstance(value, dict) else value
                raise UnsupportedModelError(f"{fields.source} sets {key} ({shown}), which minllm does not compute.")
        elif value:  # false, 0, "" and empty lists switch a feature off
            raise UnsupportedModelError(
                f"{fields.source} sets {key} = {_shortened(value)}, which minllm does not know and which may change the model's results. "
                "If it does not change them, remove the key from config.json or set it to null."
            )


def _shortened(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
