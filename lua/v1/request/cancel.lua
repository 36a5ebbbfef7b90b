-- cancel: cancels a request. No further slice starts, slices that workers hold are finished, and all other sub-requests
-- are counted as cancelled.
-- Says: ok tokens | ended summary | gone
--   ok: a worker still holds a slice
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local reason = ARGV[2]  -- words for people
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/finish.lua

local state, over = load_unfinished()
if over then
  return over
end
if state.state ~= "cancelling" then
  stop(state, "cancelling", reason)
end
return finish_or_mint(state, now_ms(now), "ok")
