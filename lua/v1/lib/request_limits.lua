-- What a request holds of its keys, and what waits for it there.
-- @include lib/state.lua
-- @include lib/limit_keys.lua

local function home_of(state)
  return "{" .. string.match(state.gate.keys, "^[^%%]*") .. "}"
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

-- Removes the token of a permit that is queued no more from the keys of the request.
local function withdraw_token(state, k, g)
  if state.gate.keys ~= "" then
    drop_token(home_of(state), name_of_lease(k, g) .. token_suffix(state))
  end
end

local function release_keys(state, k, g)
  if state.gate.keys ~= "" then
    give_back_keys(home_of(state), state.gate.keys, name_of_lease(k, g))
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
local function leave_keys(state, all)
  for i = 1, #all, 2 do
    local kind, text = string.match(all[i + 1], "^([qh]):(.*)$")
    if kind == "q" then
      withdraw_token(state, all[i], string.match(text, "^%d+"))
    elseif kind == "h" then
      release_keys(state, all[i], string.match(text, "^%d+:(%d+)"))
    end
  end
  if is_ordered(state) then
    local stops = state.dead > 0 and redis.call("HGET", request, "on_dead")
    give_back_keys(home_of(state), state.gate.keys, string.sub(request, 6, -2), stops)
  end
end
