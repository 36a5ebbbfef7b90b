-- The gate of a request: before `opens` (ms) none of its sub-requests starts. It is closed at creation by a delay, and
-- later whenever its rates leave no room. A request that waits for others has a gate that opens NEVER, until the leading
-- worker has found that they ended. `rates` has the widest number of tokens that may be on their way, and four
-- values for each bucket (lib/rates/bucket.lua): " <key> <interval> <burst> <weight>". `turn` is "<share>:<tenant>", "" without a
-- tenant; see lib/dispatch/turns.lua.
-- @include lib/core/state.lua
-- @include lib/permits/resize.lua
local function gate_text(state)
  return string.format(state.turn == "" and "%d|%s" or "%d|%s|%s", state.opens, state.rates, state.turn)
end

local function set_gate(state, opens)
  state.opens = opens
  redis.call("HSET", request, "gate", gate_text(state))
end

-- Closes the gate until `opens`. The tokens that are on their way go stale; mint queues the sleeper.
local function close_gate(state, now, opens)
  set_gate(state, opens)
  park_surplus(state, now, all_permits(state))
end
