-- confirm: a write that always happens, so that WAIT behind it has something to wait for: a repeated
-- call that finds everything done writes nothing, and WAIT would say yes at once. It also says what
-- is there, in case a failover took some of it before. Creates no key.
-- Says: ok state chain | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
-- @include lib/now_ms.lua

local found = redis.call("HMGET", request, "state", "chain", "digest")
if not found[1] or found[1] == "abandoned" then
  return {"gone"}
end
redis.call("HSET", request, "confirm", now_ms(now))
return {"ok", found[1], found[2] or found[3] or ""}
