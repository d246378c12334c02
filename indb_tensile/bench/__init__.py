"""Every claimed figure, one command each."""
