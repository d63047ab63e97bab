"""PinLater."""
