-- set_rate: gives a request other rates. If it waits for room in its buckets, it may ask again immediately; a delay or a hold
-- stands. The caller bounds what each bucket owes afterwards (rates/refit.lua).
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local rates = ARGV[2]  -- see lib/gate.lua
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/gate.lua

if not are_rates(rates) then
  return redis.error_reply("BADARGUMENT a width and four values for each rate are expected")
end
now = now_ms(now)
local state, over = load_unfinished()
if over then
  return over
elseif state.gate.rates == rates then
  return {"ok", queued_tokens(state, now)}
end
set_gate(state, state.gate.is_limited and 0 or state.gate.opens, false, rates)
local tokens = mint(state, now)
save_state(state)
return {"ok", tokens}
