-- hold: starts no sub-request of a request for a time. Calls that run are finished. Afterwards the request continues.
-- Says: ok tokens rates | ended summary | gone
--   tokens = the token that is due after this time; rates = see lib/gate.lua, "" = none
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local ms = tonumber(ARGV[2])  -- how long, 1 ms to a day; if it waits for longer already, that stands
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/gate.lua

if not ms or ms < 1 or ms > 86400000 then
  return redis.error_reply("BADARGUMENT 1 ms to a day is expected")
end
local state, over = load_unfinished()
if over then
  return over
end
now = now_ms(now)
local opens = opens_by(state.gate, now)
if state.gate.is_limited or now + ms > opens then
  close_gate(state, now, math.max(opens, now + ms))
end
local tokens = mint(state, now)
save_state(state)
return {"ok", tokens, state.gate.rates}
