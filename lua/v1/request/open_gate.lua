-- open_gate: lets a request start that has waited for others.
-- Says: ok tokens | ended summary | gone
-- @flags allow-oom
-- @include lib/core/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
-- @include lib/core/now_ms.lua
-- @include lib/core/state.lua
-- @include lib/gate/gate.lua
-- @include lib/permits/mint.lua

local state, over = load_unfinished()
if over then
  return over
end
if state.gate.opens == NEVER then
  set_gate(state, 0)
end
local tokens = mint(state, now_ms(now))
save_state(state)
return {"ok", tokens}
