"""holdfast contracts"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.deployed import File
from holdfast.cli.session import Json, Session

_COLUMNS = ("contract", "pays", "is paid", "price", "now", "period", "may move", "used", "paid so far", "agreed")


def command(
    file: File,
    make_tokens: Annotated[
        bool, typer.Option("--make-tokens", help="Make the tokens that are missing, to be handed to partners.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the contracts of a deployment's hosts: with whom, at which price, and how far they are used.

    A contract lets one owner move load to another and pay for it. It stands in the files of both (load: in the
    deployment); "agreed" says whether the partner has the same clauses. "now" is the price that is paid at this moment,
    "used" the load that has moved under it, in units of the contract.

    \b
    holdfast contracts anna.yaml
    holdfast contracts anna.yaml --make-tokens
    """
    from holdfast.cli.sharing import ask, sharing_hosts, somebody
    from holdfast.host.deployment import load_deployment
    from holdfast.model.errors import PeerError

    session, deployment = Session(None, json), load_deployment(file)
    if make_tokens:
        _make_tokens(session, deployment)
        return
    asked = sharing_hosts(deployment)
    answers = somebody(ask(asked, "/v1/contracts"))
    rows, troubles = [], [str(answer) for answer in answers if isinstance(answer, PeerError)]
    for answer in answers:
        if isinstance(answer, PeerError):
            continue
        if json:
            session.emit(**answer)
        rows += [_row(contract) for contract in answer["contracts"]]
        troubles += [f"{c['contract']}: {c['why']}" for c in answer["contracts"] if c["why"]]
    if not json:
        session.table(_COLUMNS, rows)
        for trouble in troubles:
            print(trouble)


def _row(contract: dict[str, Any]) -> list[str]:
    low, high = contract["price_low"], contract["price_high"]
    agreed = {True: "yes", False: "no", None: "?"}[contract["agreed"]]
    return [
        contract["contract"], contract["buyer"], contract["seller"],
        f"{low:g}" if low == high else f"{low:g} to {high:g}",
        "-" if contract["price"] is None else f"{contract['price']:.3g}", f"{contract['period_s']:g}s",
        ", ".join(contract["permits"] or ["everything"]) + ("" if contract["onward"] else ", not further"),
        f"{contract['used']:.3g} in {len(contract['leases'])}", f"{contract['paid']:.3f}", agreed,
    ]  # fmt: skip


def _make_tokens(session: Session, deployment: Any) -> None:
    from holdfast.load.contract_file import load_terms

    for spec in deployment.hosts:
        if spec.load is not None:
            for partner in load_terms(spec.load).partners.values():
                made = partner.make_token()
                text = f"{partner.token_file}: {'made; hand it to' if made else 'is there; shared with'} {partner.name}"
                session.say(text, token=str(partner.token_file), partner=partner.name, made=made)
