-- set_limit: sets how many leases the request may have from now on. Leases above a lower limit are not taken back, but
-- their permits are not used again. A higher limit mints tokens.
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local limit = tonumber(ARGV[2])  -- permits 1..10000
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua

if not limit or limit < 1 or limit > 10000 or limit % 1 ~= 0 then
  return redis.error_reply("BADLIMIT a whole number from 1 to 10000 is expected")
end
now = now_ms(now)
local state, reply = change_policy("limit", limit, now)
if reply then
  return reply
end
resize(state, now)
local tokens = mint(state, now)
save_state(state)
return {"ok", tokens}
