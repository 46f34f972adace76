-- Counts new bytes of an owner and its group, if both have room for them.
-- KEYS: ledgers. ARGV: bytes, their lifetime in milliseconds (0: they are not counted), the most bytes of each ledger.
-- Answers nothing, or the number of the ledger that has no room.
return ADMIT(1, 1)
