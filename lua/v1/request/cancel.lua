-- cancel: nothing more of this request starts; what is held ends with its slice, the rest is counted
-- cancelled. Says: ok (something is still held) | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local reason = ARGV[2]  -- words for people
-- @include lib/now_ms.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/mint.lua
-- @include lib/finish.lua
-- @include lib/stop.lua

local state, over = living_state()
if over then
  return over
end
if state.state ~= "cancelling" then
  stop(state, "cancelling", reason)
end
return finish_or_mint(state, now_ms(now), "ok")
