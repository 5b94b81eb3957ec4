"""GGUF, llama.cpp's file format: one file with a model's hyperparameters, tokenizer and (quantised) weights.

Source: ggml's docs/gguf.md, and llama.cpp for what that page leaves out. From the bytes up: value_reader.py, metadata.py, tensor_table.py
and gguf_file.py read the container; block_types.py and the files q*.py decode the bytes of a tensor; tensor_names.py, hyperparameters.py
and checkpoint.py translate llama.cpp's names and layouts into Hugging Face's; vocabulary.py and pre_tokenizers.py build the tokenizer;
gguf_model.py combines them.
"""
