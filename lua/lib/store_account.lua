-- Stores the account (lib/account).
-- reads: granted granted_before line_ms refilled_ms since_ms units
call('HSET', key_meta, 'account', pack('>I6I6I6I6I4I4', refilled_ms, units, line_ms, since_ms, granted, granted_before))
