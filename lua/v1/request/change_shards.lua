-- change_shards: queues the queued permits again in lanes of other shards, due as before; their old tokens go stale.
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local shards = ARGV[2]  -- numbers with commas, "" = the queue's own lanes
-- @include lib/core.lua
-- @include lib/permits.lua
-- @include lib/create.lua

if not are_shards(shards) then
  return redis.error_reply("BADSHARDS numbers with commas between them are expected")
end
now = now_ms(now)
local state, reply = change_policy("shards", shards, now)
if reply then
  return reply
end
return {"ok", change_lanes(state, now)}
