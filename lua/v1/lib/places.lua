-- The places of requests in order keys.
-- @include lib/limit_keys.lua

-- Gives a new request, or one that is opened again, its place in its order key. `keys`: its keys. A repair removes the stop of this
-- life; a new life of the id removes none, because only a person may lift a stop.
-- @rare
local function take_place(home, keys, is_repair)
  for _, key in ipairs(each_key(home, keys)) do
    if key.place then
      local id = string.sub(request, 6, -2)
      redis.call("HSET", home .. ":limits", key.name, 1)
      redis.call("ZADD", key.set, key.place, id)
      if is_repair and redis.call("ZREM", key.set, string.format(STOP, key.place, id)) == 1 then
        call_next(home, key)
      end
    end
  end
end
