"""The small trained ladder that ships: its data, tokenizer, recipe, figures and checkpoint."""
