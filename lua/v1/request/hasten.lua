-- hasten: moves one waiting permit of a request to the most urgent lane, if nothing of the request has started for as long
-- as its `ageing`, and if one waits in another lane.
-- Says: ok tokens | early | ended summary | gone
--   early: it has not waited for so long, or has no ageing
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/gate.lua

local state, over = load_unfinished()
if over then
  return over
end
now = now_ms(now)
local row = redis.call("HMGET", request, "ageing", "aged")
if not row[1] or aged_at(state, row[1], row[2]) > now then
  return {"early"}
end
local tokens = hasten(state, now)
save_state(state, "aged", string.format("%d", now))
return {"ok", tokens}
