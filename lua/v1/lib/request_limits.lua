-- What a request holds of its keys, and what waits for it there.
-- @include lib/state.lua
-- @include lib/limit_keys.lua

-- Returns "{queue}"; nil if its keys are in another slot, where "%" stands for their queue. The scripts of the request cannot reach
-- them. So they return what leaves the keys among the tokens, for the lane "-": "<k>.<g>~<op>" of a lease, "<k>.<g>" of a token.
local function home_of(state)
  local queue = string.match(state.gate.keys, "^[^%%]+")
  return queue and "{" .. queue .. "}"
end

local function name_of_lease(k, g)
  return string.sub(request, 6, -2) .. "#" .. k .. "." .. g
end

-- Returns what follows k and g in each token of the request: "@<share>:<tenant>" and "%<name>=<limit>,...", or "".
local function token_suffix(state)
  local gate = state.gate
  local suffix = gate.turn == "" and "" or "@" .. gate.turn
  return gate.keys == "" and suffix or suffix .. string.match(gate.keys, "%%.*$")
end

-- Removes from the keys of the request the token of a permit that is queued no more; or gives back the keys of its lease, if `op` is
-- that of its acquire. `given`: what mint returns of keys in another slot.
local function leave_keys(state, k, g, op)
  if state.gate.keys == "" then
    return
  end
  local home = home_of(state)
  if not home then
    local given = state.given or {}
    state.given = given
    given[#given + 1], given[#given + 2], given[#given + 3] = "-", k .. "." .. g .. (op and "~" .. op or "") .. token_suffix(state), 0
  elseif op then
    give_back_keys(home, state.gate.keys, name_of_lease(k, g))
  else
    drop_token(home, name_of_lease(k, g) .. token_suffix(state))
  end
end

-- Returns true if the request has an order key. Then its sub-requests start one at a time, in their order.
local function is_ordered(state)
  return state.gate.keys ~= "" and string.find(state.gate.keys, "!", 1, true) ~= nil
end

local function least_limit(state)
  local least = math.huge
  for name, limit in string.gmatch(state.gate.keys, "([^%%=,]+)=(%d+)") do
    least = math.min(least, string.byte(name) == 33 and 1 or tonumber(limit))
  end
  return least
end

-- Gives back the keys of all permits and the place of the request, and removes their tokens from the lines. `all`: the permits as all_permits returns them.
-- @rare
local function leave_all_keys(state, all)
  for i = 1, #all, 2 do
    local queued, held, op = string.match(all[i + 1], "^q:(%d+)"), string.match(all[i + 1], "^h:%d+:(%d+):(%x*)")
    if queued then
      leave_keys(state, all[i], queued)
    elseif held then
      leave_keys(state, all[i], held, op)
    end
  end
  if is_ordered(state) then
    local stops = state.dead > 0 and redis.call("HGET", request, "on_dead")
    give_back_keys(home_of(state), state.gate.keys, string.sub(request, 6, -2), stops)
  end
end
