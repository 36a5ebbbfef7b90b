-- Limits by key: at most so many leases at a time over all requests of a queue that name the key.
-- @include lib/turns.lua

-- ------------------------------------------------------------------ key

-- A key is one sorted set, {queue}:key:<name>. It has three zones:
--   HELD           <id>#<k>.<g>   a lease that holds a permit of the key; only these count at acquire
--   -ms            <id>#<k>.<g>~<op>   the same in a cluster, where the keys are taken before the acquire with this op; ms: when
--                  to look whether the request has such a lease, not when the entry ends. See dispatch/take_keys.lua
--   rank           <token>        called: it is in its lane, or keeps its place while another key is full; a hint
--   LINE + rank    <token>        it waits for room in this key, and is in no lane
--   LINE - 1       %<name>        a note: the line of this other key was not worked off
-- rank = lane * RANKS + ticket. All keys of a queue share it. So two requests never wait for each other.
-- {queue}:limits has name -> limit of each key that is used, "<limit> task" of those that a worker has set for its task, and
-- "<limit> set" of those that a person has set, with the number of the task behind it. {queue}:conf has kept:<name> -> the token
-- that kept its place in a key.
-- A token has its keys behind it, each with the limit that its producer named: "<id>#<k>.<g>@<turn>%<name>=<limit>,...".
-- If its keys are in another slot than its request, as in a cluster, it has %% there.
--
-- An order key is a key "!<name>", which one request has at a time, in the order of submission: a token has "!<name>=<place>".
-- Its places are requests, not leases, from the submission to the end:
--   place - RANKS  <id>             a request that has started, and has the turn until it ends
--   place          <id>             a request that has not; the one with the least place has the turn, if no stop is before it
--   STOPS + place  !<place>:<id>    a stop: a request of this place ended with dead sub-requests, and those behind it wait
--   LINE + place * LANES + lane     <token>   it waits for the turn, and is in no lane
local RANKS = 2 ^ 42
local STOPS = 2 ^ 51
local STOP = "!%d:%s"
local LINE = 2 ^ 52
local HELD = "-1"
local LANES = 128  -- more than there are
local LOOKS = 100  -- at one line in a call
local NOTES = 8  -- lines that a call works off because of notes
local PATIENCE = 100  -- tickets after which a token may keep its place in one key while it waits for another

-- Returns the keys of a token, or of the text behind its %. `declared`: the limit that its producer named; `place`: in an order key, that
-- of its request.
local function each_key(home, text)
  local found = {}
  for name, number in string.gmatch(string.match(text, "[^%%]*$"), "([^=,]+)=(%d+)") do
    found[#found + 1] = {name = name, set = home .. ":key:" .. name, declared = number,
      place = string.byte(name) == 33 and tonumber(number)}
  end
  return found
end

-- Returns the limit of a key that is in use or set, as text; nil = it is neither.
local function limit_in_force(home, name)
  local text = redis.call("HGET", home .. ":limits", name)
  return text and string.match(text, "^%d+")
end

-- Returns the request that has the turn of an order key, and its place; nil = none has it.
local function turn_of(key)
  local head = redis.call("ZRANGE", key.set, 0, 0, "WITHSCORES")
  local place = tonumber(head[2] or LINE)
  if place < 0 then
    return head[1], place + RANKS
  elseif place < STOPS and redis.call("ZCOUNT", key.set, score_text(STOPS), below(STOPS + place)) == 0 then
    return head[1], place
  end
end

-- Returns true if a token of this rank may go to its lane; with the rank 0, if it may take the key. Those held count, and those
-- called with a better rank. So an urgent token does not wait for one that was called to a later lane. Of an order key the
-- request of the token must have the turn.
local function may_call(home, key, token, rank)
  if key.place then
    local id = string.match(token, "^[^#]*")
    if turn_of(key) == id then
      return true
    elseif not redis.call("ZSCORE", key.set, id) then  -- it has ended, or damage took its place: the pop decides
      return rank > 0 or redis.call("ZADD", key.set, key.place, id) == 1 and turn_of(key) == id
    end
    return false
  end
  local limit = limit_in_force(home, key.name)
  if not limit then  -- the first request that names a key sets its limit
    limit = key.declared
    redis.call("HSET", home .. ":limits", key.name, limit)
  end
  return redis.call("ZCOUNT", key.set, "-inf", below(rank)) < tonumber(limit)
end

-- Returns the score of a token of this rank that waits for the key.
local function line_score(key, rank)
  return score_text(LINE + (key.place and key.place * LANES + math.floor(rank / RANKS) or rank))
end

-- ------------------------------------------------------------------ lane

-- Calls a token if all its keys have room; else it waits in the line of the first one that has none. Returns that key, and the
-- keys that it has left because it lost its turn: a request ahead of it in its order may wait for them. If the token was called before, it goes to its lane once more, because its first copy may be lost.
local function call_or_wait(home, token, rank)
  local full
  local keys, left = each_key(home, token), {}
  for _, key in ipairs(keys) do
    full = full or not may_call(home, key, token, rank) and key
  end
  for _, key in ipairs(full and full.place and keys or {}) do
    if key ~= full and redis.call("ZREM", key.set, token) == 1 then
      left[#left + 1] = key
    end
  end
  if full then
    local is_new = redis.call("ZADD", full.set, "NX", line_score(full, rank), token) == 1
    if is_new or tonumber(redis.call("ZSCORE", full.set, token)) >= LINE then
      return full, left
    end
  else
    for _, key in ipairs(keys) do
      if not key.place then
        redis.call("ZADD", key.set, score_text(rank), token)
      end
    end
  end
  local lane = string.format("%d", math.floor(rank / RANKS))
  turns, tenants = home .. ":turns", home .. ":tenants"
  redis.call("LPUSH", home .. ":" .. lane, place_token(lane, token))
  return full, left
end

-- ------------------------------------------------------------------ line

-- Keeps the place of a blocked token in a key, if it has waited for long. A key keeps one place at a time, because it is not
-- used meanwhile: one is enough for each token to start once.
local function keep_place(home, key, token, rank)
  local known = redis.call("HMGET", home .. ":conf", "ticket", "kept:" .. key.name)
  if tonumber(known[1]) - rank % RANKS <= PATIENCE then
    return
  end
  local kept = known[2] and tonumber(redis.call("ZSCORE", key.set, known[2]))
  if not kept or kept >= LINE then
    redis.call("HSET", home .. ":conf", "kept:" .. key.name, token)
    redis.call("ZADD", key.set, score_text(rank), token)
  end
end

-- Returns the best token that waits for a key, and its rank; -1 = it is a note. Of an order key: a token of the request that
-- has the turn.
local function first_in_line(key)
  local least, most = score_text(LINE - 1), "+inf"
  if key.place then
    local note = redis.call("ZRANGEBYSCORE", key.set, least, least, "LIMIT", 0, 1)[1]
    if note then
      return note, -1
    end
    local _, place = turn_of(key)
    if not place then
      return nil
    end
    least, most = score_text(LINE + place * LANES), below(LINE + (place + 1) * LANES)
  end
  local head = redis.call("ZRANGEBYSCORE", key.set, least, most, "WITHSCORES", "LIMIT", 0, 1)
  local rank = head[1] and tonumber(head[2]) - LINE
  if key.place and rank then
    rank = rank % LANES * RANKS + math.floor(rank / LANES)
  end
  return head[1], rank
end

-- Calls the tokens that wait for a key, as far as there is room. Adds the keys in notes that it found to `todo`.
local function call_line(home, key, todo)
  for look = 1, LOOKS do
    local token, rank = first_in_line(key)
    if rank == -1 then
      redis.call("ZREM", key.set, token)
      local name = string.sub(token, 2)
      todo[#todo + 1] = each_key(home, name .. "=1")[1]
    elseif not token or not key.place and not may_call(home, key, token, rank) then
      return
    else
      redis.call("ZREM", key.set, token)
      local other, left = call_or_wait(home, token, rank)
      for _, one in ipairs(left) do
        todo[#todo + 1] = one
      end
      if other and other.place then  -- it has lost its turn, and those that it was ahead of may be ahead of it there
        todo[#todo + 1] = look == LOOKS and key or nil
      elseif other then
        if not key.place then
          keep_place(home, key, token, rank)
        end
        if look == LOOKS then
          redis.call("ZADD", other.set, score_text(LINE - 1), "%" .. key.name)
        end
      end
    end
  end
end

-- Ends each change that may have made room in a key.
local function call_next(home, key)
  local last = redis.call("ZRANGE", key.set, -1, -1, "WITHSCORES")
  if not last[1] then  -- it is not in use: its limit is forgotten, unless it was set
    local text = redis.call("HGET", home .. ":limits", key.name)
    if text and not string.find(text, " ", 1, true) then
      redis.call("HDEL", home .. ":limits", key.name)
    end
    redis.call("HDEL", home .. ":conf", "kept:" .. key.name)
  elseif tonumber(last[2]) >= LINE - 1 then
    local todo = {key}
    for i = 1, NOTES do
      if not todo[i] then
        return
      end
      call_line(home, todo[i], todo)
    end
    for i = NOTES + 1, #todo do
      redis.call("ZADD", key.set, score_text(LINE - 1), "%" .. todo[i].name)
    end
  end
end

-- Places a token that mint has returned, behind those of its lane that wait already.
-- @rare
local function place_new(home, lane, token)
  local _, left = call_or_wait(home, token, lane * RANKS + redis.call("HINCRBY", home .. ":conf", "ticket", 1))
  for _, key in ipairs(left) do
    call_next(home, key)
  end
end

-- ------------------------------------------------------------------ token that was popped

-- Removes a token that cannot start, or whose permit is no longer queued, from its keys.
-- @rare
local function drop_token(home, token)
  for _, key in ipairs(each_key(home, token)) do
    if redis.call("ZREM", key.set, token) == 1 then
      call_next(home, key)
    end
  end
end

-- Returns true if all keys of a token have room. Else the token waits in the line of the first one that has none, at
-- its old place, and its calls go to others.
-- @rare
local function all_have_room(home, token, lane)
  local keys = each_key(home, token)
  local full
  for _, key in ipairs(keys) do
    if not full and not may_call(home, key, token, 0) then
      full = key
    end
  end
  if not full then
    return true
  end
  local rank
  for _, key in ipairs(keys) do
    local score = not key.place and tonumber(redis.call("ZSCORE", key.set, token))
    rank = rank or score and (score < LINE and score or score - LINE)
  end
  rank = rank or lane * RANKS + redis.call("HINCRBY", home .. ":conf", "ticket", 1)
  redis.call("ZADD", full.set, line_score(full, rank), token)
  for _, key in ipairs(keys) do
    if key ~= full and redis.call("ZREM", key.set, token) == 1 then
      call_next(home, key)
    end
  end
  return false
end

-- Takes a permit of each key of a token, for the lease that is granted now; or for the one that `op` will acquire.
-- `look`: then, when to look for that lease.
-- @rare
local function take_keys(home, token, op, look)
  local lease = string.match(token, "^[^#]*#%d+%.%d+")
  for _, key in ipairs(each_key(home, token)) do
    redis.call("ZREM", key.set, token)
    if key.place then
      redis.call("ZADD", key.set, score_text(key.place - RANKS), string.match(token, "^[^#]*"))
    elseif op then
      redis.call("ZADD", key.set, score_text(-look), lease .. "~" .. op)
    else
      redis.call("ZADD", key.set, HELD, lease)
    end
  end
end

-- Gives back what a lease holds, or the places of a request that ends in its order keys. `keys`: the names and numbers of all of them.
-- `stops`: those behind the request wait until a person lets them go on.
-- @rare
local function give_back_keys(home, keys, member, stops)
  local is_lease = string.find(member, "#", 1, true) ~= nil
  for _, key in ipairs(each_key(home, keys)) do
    if is_lease ~= (key.place and true or false) and redis.call("ZREM", key.set, member) == 1 then
      if stops then
        redis.call("ZADD", key.set, score_text(STOPS + key.place), string.format(STOP, key.place, member))
      end
      call_next(home, key)
    end
  end
end

-- ------------------------------------------------------------------ tokens of new requests

-- What goes to the lane of new requests immediately.

-- Adds the words for the tokens that are due now to `tokens`, or places them if they name keys; returns the others as mint
-- did. `home`: nil = they name no keys.
local function take_due(minted, id, tokens, home)
  local later = {}
  for i = 1, #minted, 3 do
    local lane, token = minted[i], id .. "#" .. minted[i + 1]
    if minted[i + 2] > 0 then
      later[#later + 1], later[#later + 2], later[#later + 3] = lane, minted[i + 1], minted[i + 2]
    elseif home then
      place_new(home, lane, token)
    else
      tokens[#tokens + 1] = place_token(lane, token)
    end
  end
  return later
end
