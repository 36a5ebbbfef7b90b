-- The gate of a request: before `opens` (ms) none of its sub-requests starts. It is closed at creation by a delay, and
-- later whenever its rates leave no room. A request that waits for others has a gate that opens NEVER, until the leading
-- worker has found that they ended. `rates` has the widest number of tokens that may be on their way, and four
-- values for each bucket (lib/rates/bucket.lua): " <key> <interval> <burst> <weight>". `turn` is "<share>:<tenant>", "" without a
-- tenant; see lib/dispatch/turns.lua.
-- @include lib/core/state.lua
-- @include lib/permits/resize.lua
-- In the hash a 1 stands for is_limited: the gate was closed because the buckets have no room, and the request has its place
-- in the line.
local function gate_text(state)
  local gate = string.format("%d|%s", state.opens, state.rates)
  if state.is_limited or state.turn ~= "" then
    gate = gate .. (state.is_limited and "|1|" or "||") .. state.turn
  end
  return gate
end

-- Returns true if this text has a width and four values for each rate.
local function are_rates(text)
  local rest = string.match(text, "^[1-9]%d*( .+)$")
  while rest and rest ~= "" do
    rest = string.match(rest, "^ [%w_.:/=-]+ [1-9]%d* [1-9]%d* [1-9]%d*(.*)$")
  end
  return rest == ""
end

local function set_gate(state, opens, is_limited)
  state.opens, state.is_limited = opens, is_limited
  redis.call("HSET", request, "gate", gate_text(state))
end

-- Closes the gate until `opens`; `is_limited`: because the buckets have no room. The tokens that are on their way go stale; mint queues the sleeper.
local function close_gate(state, now, opens, is_limited)
  set_gate(state, opens, is_limited)
  park_surplus(state, now, all_permits(state))
end
