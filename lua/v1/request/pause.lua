-- pause: starts no further slice of this request until resume; slices that workers hold are finished. A request that is
-- being cancelled, or has passed its deadline, stays so.
-- Says: ok state tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua

local state, over = load_unfinished()
if over then
  return over
end
if state.state == "active" and not is_overdue(state, now_ms(now)) then
  stop(state, "paused", "")
  save_state(state)
end
return {"ok", state.state, state.given or {}}
