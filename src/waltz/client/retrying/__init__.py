"""Operations that may be repeated."""
