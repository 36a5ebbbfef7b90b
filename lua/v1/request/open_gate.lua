-- open_gate: lets a request start that has waited for others, notes which of them have ended, or cancels the request because
-- one of them failed. It does so only if the request still waits for what the caller read: a later life of the id may
-- wait for others.
-- Says: ok tokens | other | ended summary | gone
--   other: the request waits for something else by now, or for nothing
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local found = ARGV[2]  -- `after` as the caller read it, see lib/create.lua
local left = ARGV[3]  -- what it waits for now, "" = for nothing: it starts
local reason = ARGV[4]  -- words for people; "" = none of the others failed
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/finish.lua
-- @include lib/gate.lua

local state, over = load_unfinished()
if over then
  return over
end
if state.gate.opens ~= NEVER or redis.call("HGET", request, "after") ~= found then
  return {"other"}
end
now = now_ms(now)
if reason ~= "" then
  if state.state ~= "cancelling" then
    stop(state, "cancelling", reason)
  end
elseif left ~= "" then
  redis.call("HSET", request, "after", left)
else
  set_gate(state, 0)
end
return finish_or_mint(state, now, "ok")
