-- confirm: always writes something, so that a WAIT sent after it has a write to wait for. A repeated call of another
-- script may find everything done and write nothing; then WAIT would succeed immediately. The reply also names what
-- is there, because a failover may have lost a part. Creates no key.
-- Says: ok state chain born open | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
-- @include lib/core.lua
-- @include lib/state.lua

local state = load_state()
if not state then
  return {"gone"}
end
redis.call("HSET", request, "confirm", now_ms(now))
local _, chain = chain_of()
return {"ok", state.state, chain, state.born, state.open}
