-- The gate of a request: before `opens` (ms) none of its sub-requests starts. It is closed at creation by a delay, and
-- later whenever its rates leave no room. A request that waits for others has a gate that opens NEVER, until the leading
-- worker has found that they ended. `rates` has the widest number of tokens that may be on their way, and four
-- values for each bucket (lib/rates/bucket.lua): " <key> <interval> <burst> <weight>". `turn` is "<share>:<tenant>", "" without a
-- tenant; see lib/dispatch/turns.lua. `wait` is for how many ms the gate was closed, 0 if it opens at a time of the calendar.
-- @include lib/core/state.lua
-- @include lib/permits/resize.lua
-- Returns true if this text has a width and four values for each rate.
local function are_rates(text)
  local rest = string.match(text, "^[1-9]%d*( .+)$")
  while rest and rest ~= "" do
    rest = string.match(rest, "^ [%w_.:/=-]+ [1-9]%d* [1-9]%d* [1-9]%d*(.*)$")
  end
  return rest == ""
end

-- Gives the request another gate; `rates`: nil leaves those it has.
-- @rare
local function set_gate(state, opens, is_limited, rates, wait)
  state.gate = {opens = opens, rates = rates or state.gate.rates, is_limited = is_limited, turn = state.gate.turn,
    wait = opens > 0 and (wait or state.gate.wait) or 0}
  redis.call("HSET", request, "gate", gate_text(state.gate))
end

-- Closes the gate until `opens`; `is_limited`: because the buckets have no room. The tokens that are on their way go stale; mint queues the sleeper.
-- @rare
local function close_gate(state, now, opens, is_limited)
  set_gate(state, opens, is_limited, nil, opens - now)
  park_surplus(state, now, all_permits(state))
end
