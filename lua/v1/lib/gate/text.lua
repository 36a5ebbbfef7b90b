-- The gate of a request as a table, and as its hash has it: opens|rates|limited|turn|wait, see lib/gate/gate.lua.
-- Most requests have none. They share this table, because each field more in the table of a state costs time.
local OPEN = {opens = 0, rates = "", is_limited = false, turn = "", wait = 0}
local GATE = "^(%d+)|([^|]*)|?(1?)|?([^|]*)|?(%d*)$"

local function read_gate(text)
  local opens, rates, limited, turn, wait = string.match(text, GATE)
  if not opens then
    error("BADSTATE the gate of " .. request .. " cannot be read", 0)
  end
  return {opens = tonumber(opens), rates = rates, is_limited = limited == "1", turn = turn,
    wait = tonumber(wait) or 0}
end

-- In the hash a 1 stands for is_limited: the gate was closed because the buckets have no room, and the request has its place
-- in the line.
local function gate_text(gate)
  local text = string.format("%d|%s", gate.opens, gate.rates)
  if gate.is_limited or gate.turn ~= "" or gate.wait > 0 then
    text = text .. (gate.is_limited and "|1|" or "||") .. gate.turn
  end
  if gate.wait > 0 then
    text = text .. string.format("|%d", gate.wait)
  end
  return text
end
