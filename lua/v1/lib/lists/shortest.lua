-- Returns which of `count` lists from KEYS[outs] on is the shortest, from 0; the first one of those that are equally short.
local function shortest(outs, count)
  local best, least = 0, nil
  for i = 0, count - 1 do
    local length = redis.call("LLEN", KEYS[outs + i])
    if not least or length < least then
      best, least = i, length
    end
  end
  return best
end
