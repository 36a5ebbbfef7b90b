-- seal: ends the submission: no more chunks will come. The counter loses the one that it had for the open request.
-- Says: ok tokens | conflict | cancelling summary | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local ids = KEYS[11]  -- ids:{id}?  set  the ids of its sub-requests, if it takes each once
local now = ARGV[1]  -- ms, "" = server time
local chunks = tonumber(ARGV[2])  -- how many chunks the producer sent
local chain = ARGV[3]  -- hex digest over all of them
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/finish.lua

if not chunks then
  return redis.error_reply("BADARGUMENT seal wants a number for chunks")
end
local state, over = load_unfinished()
if over then
  return over
end
local stored, last = chain_of()
if chunks ~= stored or chain ~= last then
  return {"conflict"}  -- two producers with one id: the other's request goes on
end
if state.state == "cancelling" then
  return {"cancelling", summary(state)}
end
now = now_ms(now)
if state.open == 0 then
  return {"ok", queued_tokens(state, now)}
end
redis.call("DECRBY", counter, 0)  -- refused, if at all, before the request is sealed
if ids then  -- nothing is added any more; also refused before the request is sealed
  redis.call("UNLINK", ids)
end
state.open = 0
save_state(state)
state.left = redis.call("DECRBY", counter, 1)
redis.call("HDEL", request, "open_until")  -- a request that still has it was cancelled before it was sealed
return finish_or_mint(state, now, "ok")
