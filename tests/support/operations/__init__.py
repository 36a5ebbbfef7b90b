"""Operations of the product driven step by step, or with replies that are lost."""
