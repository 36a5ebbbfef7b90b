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
