-- The places of requests in order keys.
-- @include lib/limit_keys.lua

-- Gives a new request, or one that is opened again, its place in its order key. `keys`: its keys. A request that had stopped those
-- behind it has the turn again.
-- @rare
local function take_place(home, keys)
  for _, key in ipairs(each_key(home, keys)) do
    if key.place then
      local id = string.sub(request, 6, -2)
      redis.call("HSET", home .. ":limits", key.name, 1)
      redis.call("ZREM", key.set, "!" .. id)
      redis.call("ZADD", key.set, key.place, id)
    end
  end
end
