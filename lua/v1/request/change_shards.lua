-- change_shards: what is queued goes into the lanes of other shards, due as it was; its old tokens go stale.
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/core/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local shards = ARGV[2]  -- numbers with commas, "" = the queue's own lanes
-- @include lib/core/now_ms.lua
-- @include lib/core/state.lua
-- @include lib/permits/permits.lua
-- @include lib/permits/mint.lua
-- @include lib/permits/requeue_all.lua
-- @include lib/core/shards.lua

if not are_shards(shards) then
  return redis.error_reply("BADSHARDS numbers with commas between them are expected")
end
local state, over = load_unfinished()
if over then
  return over
end
now = now_ms(now)
if shards == state.shards then
  return {"ok", queued_tokens(now)}
end
state.shards = shards
return {"ok", change_lanes(state, now)}
