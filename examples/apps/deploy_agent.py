"""A deployment agent: starts a build, waits for its webhook, and asks a person before it ships."""

import secrets
import socket
import threading

import httpx2
import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import ferrule
from ferrule.testing import ScriptedLM


class Build(BaseModel):
    """What the build server posts."""

    green: bool
    image: str


@ferrule.tool(effect="idempotent")
def build(branch: str, ctx: ferrule.Context) -> Build | ferrule.Later:
    """Build a branch and test it."""
    order = {"branch": branch, "id": ctx.key, "callback": ctx.result_url}
    httpx2.post(ferrule.settings.extra["ci"], json=order).raise_for_status()
    return ferrule.Later(note="The build server is at work.", within_s=3600)


@ferrule.tool(require_confirmation=True)
def ship(image: str) -> str:
    """Put an image into production."""
    return f"{image} is live"


agent = ferrule.ReAct("task -> report", [build, ship], native=True)


def service(store: ferrule.Store) -> Starlette:
    """`POST /deploy/BRANCH` starts a run; `/results/...` takes its build. `ferrule ui` has the question to a person, too."""

    def deploy(request: Request) -> JSONResponse:
        run = agent.start(task=f"Deploy {request.path_params['branch']}.", store=store)
        return JSONResponse({"run": run.id, "status": run.status})

    def approve(request: Request) -> JSONResponse:  # check who asks
        run = request.path_params["run"]
        store.decide(run, store.summary(run).questions[0].approve().signed("ann"))
        return JSONResponse({"status": ferrule.advance(store, run, agent)})

    return Starlette(
        routes=[
            Route("/deploy/{branch}", deploy, methods=["POST"]),
            Route("/approve/{run}", approve, methods=["POST"]),
            ferrule.result_route(
                store, on_delivered=lambda run: ferrule.advance(store, run, agent)
            ),
        ]
    )


def model(request: ferrule.Request) -> dict[str, object]:
    """Play the model. With a real one: `configure(lm=LM("openai/gpt-5-mini"))`."""
    results = [message.text for message in request.messages if message.role == "tool"]
    if not results:
        return {"name": "build", "args": {"branch": "main"}}
    if "shop:42" in results[-1] and "live" not in results[-1]:
        return {"name": "ship", "args": {"image": "shop:42"}}
    return {"name": "finish", "args": {"report": results[-1]}}


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    links = ferrule.ResultLinks(address, secret=secrets.token_urlsafe(32))
    ferrule.configure(
        result_links=links, extra={"ci": f"{address}/builds"}, lm=ScriptedLM(by=model)
    )
    orders, store = [], ferrule.MemoryStore()

    async def take(request: Request) -> JSONResponse:
        orders.append(await request.json())
        return JSONResponse({})

    app = service(store)
    app.router.routes.append(Route("/builds", take, methods=["POST"]))  # the build server
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    run = httpx2.post(f"{address}/deploy/main").json()
    print("the run is", run["status"], "for the build of", orders[0]["branch"])
    done = httpx2.post(orders[0]["callback"], json={"green": True, "image": "shop:42"})
    print("the build server's webhook:", done.json()["status"])
    print("then it asks:", store.summary(run["run"]).questions[0].text)
    print("the run is", httpx2.post(f"{address}/approve/{run['run']}").json()["status"])
    print("report:", ferrule.Run.load(store, run["run"], agent).prediction.report)
