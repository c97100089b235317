# fmt: off
# ruff: noqa: E401, E701, I001, RET503  (what is short stands on one line: all of it fits on fewer screens)
"""A complete ComputePool node in 150 lines of standard library, written from docs/reference/node-protocol.md alone.
HUB_URL=... OWNER_KEY=... python tiny_agent.py   For reading: one CPU slot, its key in ./tiny-agent. The real agent
caps disk and processes too, follows new hub keys, outlives its own death and knows your GPUs."""
import base64, hashlib, itertools, json, os, pathlib, subprocess, tempfile, time, urllib.request, uuid

# Ed25519 (RFC 8032) on the curve -x^2 + y^2 = 1 + D x^2 y^2 over P elements. Short, hence slow: some 50 ms.
P, ORDER, ZERO = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493, (0, 1)
D = -121665 * pow(121666, -1, P) % P
def add(p, q):  # one formula for all points: equal ones and ZERO need no special care on this curve
    (x1, y1), (x2, y2) = p, q
    k = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P
def times(k, p): return add(times(k // 2, add(p, p)), p if k % 2 else ZERO) if k else ZERO
def pack(p): return (p[1] | (p[0] & 1) << 255).to_bytes(32, "little")  # y, and in the top bit whether x is odd
def unpack(raw):
    y, odd = int.from_bytes(raw, "little") % 2**255, raw[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)  # a root of the square, or of its negative: then a root of -1 mends it
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square or y >= P or (x == 0 and odd): raise ValueError("these bytes are no point of the curve")
    return (x if x & 1 == odd else P - x), y
BASE = unpack((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
def number(*parts): return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")
def secret_of(seed): return number(seed) % 2**254 // 8 * 8 + 2**254
def public_of(seed): return pack(times(secret_of(seed), BASE))
def sign(seed, message):
    r = number(hashlib.sha512(seed).digest()[32:], message) % ORDER
    point = pack(times(r, BASE))
    return point + ((r + number(point, public_of(seed), message) * secret_of(seed)) % ORDER).to_bytes(32, "little")
def verify(public, message, signature):
    point, s = signature[:32], int.from_bytes(signature[32:], "little")
    right = add(unpack(point), times(number(point, public, message) % ORDER, unpack(public)))
    return len(signature) == 64 and s < ORDER and times(s, BASE) == right

def sha256(content): return hashlib.sha256(content).hexdigest()
def b64(raw): return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
def unb64(text): return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
def make_jwt(seed, claims, typ="JWT"):
    text = ".".join(b64(json.dumps(part).encode()) for part in ({"alg": "EdDSA", "typ": typ}, claims))
    return f"{text}.{b64(sign(seed, text.encode()))}"

def open_order(given, token, node_id, hub_keys):  # what to run, if the hub signed it for this node; else ValueError
    head, body, signature = token.split(".")
    header, claims, id = json.loads(unb64(head)), json.loads(unb64(body)), given["attempt_id"]
    key = {each["kid"]: unb64(each["public_key"]) for each in hub_keys}.get(header.get("kid"))
    told, aud = (header.get("alg"), header.get("typ"), dict(claims.get("orders") or ()).get(id)), claims.get("aud")
    due, auds = ("EdDSA", "computepool-job+jwt", sha256(given["order"].encode())), aud if type(aud) is list else [aud]
    fits = key and told == due and node_id in auds and claims.get("exp", 0) >= time.time()
    fits = fits and (order := json.loads(given["order"])).get("node_id", node_id) == node_id
    if not fits or not verify(key, f"{head}.{body}".encode(), unb64(signature)): raise ValueError("no token for this")
    return order

# Nothing of the machine but /usr, no network, no rights; the job's folder is named after these words.
BWRAP = """/usr/bin/bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --ro-bind /usr /usr --dev /dev
    --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --tmpfs /tmp --bind"""
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}

class Node:
    def __init__(self, hub, folder, owner_key):
        self.hub, self.folder, self.token, self.boot = hub.rstrip("/"), folder, owner_key, str(uuid.uuid4())
        folder.mkdir(mode=0o700, exist_ok=True)
        if not (folder / "seed").exists(): (folder / "seed").write_bytes(os.urandom(32))
        self.seed = (folder / "seed").read_bytes()
        about = {"name": "tiny", "isolation": "sandboxed", "public_key": b64(public_of(self.seed))}
        about["hardware"] = {"cores": 1, "ram_bytes": 2 * 10**9, "disk_bytes": 2 * 10**9, "cpu_slots": 1}
        answer = self.call("POST", "/v1/nodes", about)
        self.id, self.hub_id, self.keys, self.token = (answer[k] for k in ("node_id", "hub_id", "hub_keys", "token"))

    def call(self, method, path, body=None, lease=""):  # repeated until the hub answers; a refusal is raised
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        for wait in itertools.chain((1, 2, 4, 8, 16), itertools.repeat(30)):
            headers = {"Authorization": f"Bearer {self.token}", "Lease-Secret": lease, "Content-Type": "text/json"}
            request = urllib.request.Request(self.hub + path, content, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.read() if method == "GET" else json.loads(answer.read() or b"{}")
            except OSError as error:  # no answer, or one that is no success
                status = getattr(error, "code", 503)
                if status == 401 and path not in ("/v1/nodes", "/v1/nodes/token"): self.renew()
                elif status < 500 and status != 429: raise RuntimeError(error.read().decode()) from None
            time.sleep(wait * (0.5 + os.urandom(1)[0] / 256))

    def renew(self):
        me, now = self.id, int(time.time())
        claims = {"iss": me, "sub": me, "aud": self.hub_id, "iat": now, "exp": now + 60, "jti": str(uuid.uuid4())}
        self.token = self.call("POST", "/v1/nodes/token", {"assertion": make_jwt(self.seed, claims)})["token"]

    def next(self, free, running, seconds):  # {} or assignments, their token, controls
        body = {"boot_id": self.boot, "free_slots": free, "running": running, "wait_seconds": seconds}
        return self.call("POST", "/v1/jobs/next", body)

    def run(self, order, job, path, lease, log):  # the exit code, or None when the hub wants it stopped
        if "secrets" in order: raise ValueError("this agent cannot keep them out of a log")
        for file in order["files"]:
            content, target = self.call("GET", f"{path}/inputs/{file['sha256']}", None, lease), job / file["path"]
            safe = job in target.parents and ".." not in target.parts
            if not safe or sha256(content) != file["sha256"]: raise ValueError("a wrong input")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        if order["script"] is not None: (job / "main.py").write_text(order["script"])
        os.chown(job, NOBODY.get("user", -1), -1)
        env = {f"COMPUTEPOOL_{k.upper()}": str(v) for k, v in order.items() if type(v) is int or k == "job_id"}
        env = {**order["env"], **env, "COMPUTEPOOL_OUTPUT_DIR": "/job/out", "PATH": "/usr/bin:/bin"}
        caps = ["timeout", str(order["wall_seconds"]), "prlimit", f"--as={order['ram_bytes']}"]
        line = [*BWRAP.split(), str(job), "/job", "--dir", "/job/out", "--chdir", "/job", *caps, *order["command"]]
        with subprocess.Popen(line, env=env, stdout=log, stderr=log, **NOBODY) as process:
            sent, id = 0, order["attempt_id"]
            while True:
                ended = process.poll() is not None
                piece = os.pread(log.fileno(), min(262144, order["log_bytes"] - sent), sent)
                if piece: sent = self.call("POST", f"{path}/logs?offset={sent}", piece, lease)["next_offset"]
                elif ended: return process.returncode
                elif id in self.next([], [id], 1).get("controls", {}).get("stop", {}): return process.kill()

    def work(self, given, token):  # what the hub has to do next, or None
        id, lease, began = given["attempt_id"], given["lease_secret"], time.time()
        path, code, usage, outputs = f"/v1/attempts/{id}", None, {"run_seconds": 0.0}, []
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
            out = pathlib.Path(folder, "out")
            try:
                order = open_order(given, token, self.id, self.keys)
                (self.folder / id).touch(exist_ok=False)  # never the same one twice, not even after a restart
                code = self.run(order, out.parent, path, lease, log)
                if code is None: return None
                cause, usage["run_seconds"] = {0: None, 124: "timed_out"}.get(code, "exit_code"), time.time() - began
            except (ValueError, FileExistsError) as refusal:
                cause = "input_missing" if "input" in str(refusal) else "sandbox_refused"
            for file in (f for f in out.rglob("*") if cause is None and f.is_file() and not f.is_symlink()):
                content, name = file.read_bytes(), file.relative_to(out).as_posix()
                outputs.append({"path": name, "sha256": sha256(content), "size_bytes": len(content)})
                self.call("PUT", f"{path}/outputs/{sha256(content)}", content, lease)
        lines = sorted((each["path"], each["sha256"]) for each in outputs)
        told = {"exit_code": code, "result_sha256": sha256("".join(f"{b}  {a}\n" for a, b in lines).encode())}
        word = {"iss": self.id, "aud": self.hub_id, "iat": int(time.time()), "results": {id: {**told, **usage}}}
        receipt = make_jwt(self.seed, word, "computepool-receipt+jwt") if cause is None else ""
        end = {"attempt_id": id, "lease_secret": lease, "boot_id": self.boot, "cause": cause, "outputs": outputs}
        more = {"usage": usage, "receipt": receipt, "claim": {"free_slots": ["cpu:0"]}}
        return self.call("POST", "/v1/jobs/complete", {**end, **told, **more}).get("next")

if __name__ == "__main__":
    if not os.path.exists("/usr/bin/bwrap"): raise SystemExit("Without bubblewrap no stranger's job may run.")
    node, answer = Node(os.environ["HUB_URL"], pathlib.Path("tiny-agent"), os.environ["OWNER_KEY"]), {}
    while not answer.get("controls", {}).get("drain"):
        answer = answer.get("next") or node.next(["cpu:0"], [], 30)
        for given in answer.get("assignments", []):
            try: answer = {**answer, "next": node.work(given, answer["token"])}
            except RuntimeError as refusal: print("dropped:", refusal)
        if answer.get("controls", {}).get("pause"): time.sleep(10)
