"""Writes a GGUF model as a Hugging Face folder, dequantised: FROM.gguf TO f32|bf16. Runs with torch and transformers."""
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def main():
    source, folder, dtype = pathlib.Path(sys.argv[1]), sys.argv[2], DTYPES[sys.argv[3]]
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # What was read remembers that it was quantised and refuses to be saved: its weights go into a plain model.
    config = type(read.config)(**{k: v for k, v in read.config.to_dict().items() if k != "quantization_config"})
    plain = type(read)(config)
    plain.load_state_dict(read.state_dict())
    plain.to(dtype).save_pretrained(folder)


if __name__ == "__main__":
    main()
