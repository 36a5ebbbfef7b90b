-- confirm: a write that always happens, so that WAIT behind it has something to wait for: a repeated
-- call that finds everything done writes nothing, and WAIT would say yes at once. It also says what
-- is there, in case a failover took some of it before. Creates no key.
-- Says: ok state chain born open | gone
-- @flags allow-oom
-- @include lib/core/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
-- @include lib/core/now_ms.lua
-- @include lib/core/state.lua
-- @include lib/core/digest_chain.lua

local state = load_state()
if not state then
  return {"gone"}
end
redis.call("HSET", request, "confirm", now_ms(now))
local _, chain = chain_of()
return {"ok", state.state, chain, state.born, state.open}
