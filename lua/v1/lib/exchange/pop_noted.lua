-- Pops tokens, and notes in the same script which tokens a unit took.
-- @include lib/dispatch/turns.lua

-- Returns the tokens that a repeat of this call must acquire, or nil if this is its first run. The ops of a process
-- grow. So a call with a smaller op than the note's is a late copy, and takes nothing.
local function noted_before()
  local former, rest = string.match(redis.call("HGET", taken, place) or "", "^(%x+) ?(.*)$")
  if not former or string.sub(former, 1, 22) ~= string.sub(op, 1, 22) or former < op then
    return nil
  end
  local tokens = {}
  if former == op then
    for token in string.gmatch(rest, "%S+") do
      tokens[#tokens + 1] = token
    end
  end
  return tokens
end

-- Returns up to `want` tokens, the most urgent first, and for those popped now the number of their lane.
local function pop_noted(want)
  local noted = noted_before()
  if noted then
    return noted, {}
  end
  local tokens, lane_of, first = {}, {}, 0
  while #tokens < want do
    local args = {unpack(KEYS, lanes + first)}
    args[#args + 1], args[#args + 2], args[#args + 3] = "RIGHT", "COUNT", want - #tokens
    local popped = redis.pcall("LMPOP", #args - 3, unpack(args))
    if popped and popped.err and #tokens == 0 then  -- a lane that is no list; what was popped before it stays popped
      error(popped.err, 0)
    elseif not popped or popped.err then
      break
    end
    first = tonumber(string.match(popped[1], "(%d+)$"))
    for _, word in ipairs(popped[2]) do
      local token = word
      if word == PLACEHOLDER then
        token = take_turn(string.format("%d", first))
      end
      if token then
        tokens[#tokens + 1], lane_of[#tokens + 1] = token, first
      end
    end
  end
  if redis.call("HSET", taken, place, op .. " " .. table.concat(tokens, " ")) == 1 then  -- beats renew its TTL
    redis.call("PEXPIRE", taken, ttl)
  end
  return tokens, lane_of
end
