-- Keys in another slot than the request that names them: taken before the acquire, and given back after its lease has ended.
-- @include lib/limit_keys.lua

-- Returns true if `op` has taken all keys of a token, before or now. `look`: when to look at what it holds.
local function take_apart(home, token, lane, op, look)
  local held = string.match(token, "^[^#]*#%d+%.%d+") .. "~" .. op
  local key = each_key(home, token)[1]
  if redis.call("ZSCORE", key.set, held) then
    return true
  end
  local has_room = all_have_room(home, token, lane)
  if has_room then
    take_keys(home, token, op, look)
  end
  return has_room
end

-- Removes from its keys what a request in another slot has given up: a token, or a lease that `op` had. Each is final, because
-- no permit gets the same generation again. So a repeat or a late copy of this removes nothing else.
local function leave_apart(home, word)
  local held = string.match(word, "^([^%%@]*~%x+)[%%@]")
  if not held then
    drop_token(home, word)
    return
  end
  for _, key in ipairs(each_key(home, word)) do
    if redis.call("ZREM", key.set, held) == 1 then
      call_next(home, key)
    end
  end
end
