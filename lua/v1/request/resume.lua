-- resume: continues a paused request. A request that is being cancelled, or has passed its deadline, stays so.
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
now = now_ms(now)
if state.state ~= "paused" then
  return {"ok", state.state, queued_tokens(state, now)}
end
state.state = "active"
local tokens = mint(state, now)
save_state(state)
return {"ok", state.state, tokens}
