-- Returns the lengths of `count` lists from KEYS[outs] on, by their index from 0.
local function read_lengths(outs, count)
  local lengths = {}
  for i = 0, count - 1 do
    lengths[i] = redis.call("LLEN", KEYS[outs + i])
  end
  return lengths
end

-- Returns the index of the shortest list, the first one of those that are equally short, and counts one message more in it.
local function take_shortest(lengths, count)
  local best = 0
  for i = 1, count - 1 do
    if lengths[i] < lengths[best] then
      best = i
    end
  end
  lengths[best] = lengths[best] + 1
  return best
end
