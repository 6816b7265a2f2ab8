from dragoman.domain.lease import SelfLease


def test_an_instance_that_never_renewed_holds_no_lease() -> None:
    assert not SelfLease(ttl_s=6).valid(now=0.0)


def test_a_lease_lasts_its_ttl_from_when_the_renewal_was_sent() -> None:
    lease = SelfLease(ttl_s=6)
    lease.renewed(sent_at=100.0)
    assert lease.expires_at == 106.0
    assert lease.valid(now=105.999)
    assert not lease.valid(now=106.0)


def test_an_answer_that_was_overtaken_does_not_shorten_the_lease() -> None:
    lease = SelfLease(ttl_s=6)
    lease.renewed(sent_at=102.0)
    lease.renewed(sent_at=100.0)
    assert lease.expires_at == 108.0


def test_a_lapsed_lease_is_valid_again_once_renewed() -> None:
    lease = SelfLease(ttl_s=6)
    lease.renewed(sent_at=0.0)
    assert not lease.valid(now=50.0)
    lease.renewed(sent_at=50.0)
    assert lease.valid(now=50.0)
