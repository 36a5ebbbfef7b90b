-- move: what is queued goes into the lanes of other shards, due as it was; its old tokens go stale.
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local shards = ARGV[2]  -- numbers with commas, "" = the queue's own lanes
-- @include lib/now_ms.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/mint.lua
-- @include lib/change_lanes.lua
-- @include lib/shards.lua

if not are_shards(shards) then
  return redis.error_reply("BADSHARDS numbers with commas between them are expected")
end
local state, over = living_state()
if over then
  return over
end
now = now_ms(now)
if shards == state.shards then
  return {"ok", queued_tokens(now)}
end
state.shards = shards
return {"ok", change_lanes(state, now)}
