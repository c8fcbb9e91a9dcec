"""The value codec behind `pyrula.contracts.values`: writing, reading, annotations, inputs; import from there."""
