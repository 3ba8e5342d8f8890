"""What a cluster keeps in its coordinator: values, their bytes, and the rules that change them."""
