"""What travels: codecs, frames, messages, and what a center lets in."""
