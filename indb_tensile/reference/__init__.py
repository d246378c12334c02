"""The reference page of options and settings, made from the tables that check them."""
