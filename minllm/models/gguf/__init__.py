"""GGUF, llama.cpp's file format: a whole model in one file, with its hyperparameters, its tokenizer and its (quantised) weights.

Source: ggml's docs/gguf.md, and llama.cpp where that page is silent. From the bytes up: value_reader.py, metadata.py, tensor_table.py and
gguf_file.py read the container; block_types.py and the files beside it say what the bytes of a tensor mean; tensor_names.py,
hyperparameters.py and checkpoint.py translate llama.cpp's names and layouts into Hugging Face's; vocabulary.py and pre_tokenizers.py make
the tokenizer; gguf_model.py puts them together.
"""
